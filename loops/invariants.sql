-- What must hold of stored rows at every moment. Each statement gives the rows that break it: an id
-- and what is wrong with it. %(after)s < id <= %(upto)s is the window that is looked at;
-- {ago:x} is x seconds before now. "swept" holds once a sweep has passed.

-- I1 run ended: A run that has ended stays ended.
SELECT r.id, 'was ' || z.kind || ', then ' || e.kind
FROM loops_run r
JOIN loops_event z ON z.run_id = r.id AND z.kind IN
  ('finished', 'deadline', 'cancelled', 'worker_lost', 'accepted', 'closed', 'governed')
JOIN loops_event e ON e.run_id = r.id AND e.seq > z.seq AND e.kind IN
  ('claimed', 'judged', 'finished', 'parked', 'continued', 'refactored', 'answered', 'accepted',
   'closed', 'governed', 'cancelled', 'deadline', 'worker_lost', 'lease_expired', 'handed_back')
WHERE r.id > %(after)s AND r.id <= %(upto)s

-- I1 run end_has_time: A run has the time of its end exactly when it has ended.
SELECT r.id, 'is ' || r.status || CASE WHEN r.ended_at IS NULL THEN ' without' ELSE ' with' END
  || ' a time of its end'
FROM loops_run r
WHERE r.id > %(after)s AND r.id <= %(upto)s
  AND (r.ended_at IS NOT NULL) <> (r.status IN ({terminal}))

-- I1 graph graph_end_has_time: A graph has the time of its end exactly when it has ended.
SELECT g.id, 'is ' || g.status || CASE WHEN g.ended_at IS NULL THEN ' without' ELSE ' with' END
  || ' a time of its end'
FROM loops_graph g
WHERE g.id > %(after)s AND g.id <= %(upto)s AND (g.ended_at IS NOT NULL) <> (g.status = 'ended')

-- I2 run gapless: Attempts are numbered from 1 without a gap, and all but the newest have ended.
SELECT r.id, 'stands at attempt ' || r.attempt_no || ' and has '
  || SUM(CASE WHEN a.no < r.attempt_no AND a.status <> 'running' THEN 1 ELSE 0 END)
  || ' ended ones before it, ' || COUNT(a.id) || ' in all'
FROM loops_run r LEFT JOIN loops_attempt a ON a.run_id = r.id
WHERE r.id > %(after)s AND r.id <= %(upto)s
GROUP BY r.id
HAVING SUM(CASE WHEN a.no < r.attempt_no AND a.status <> 'running' THEN 1 ELSE 0 END)
    <> r.attempt_no - 1
  OR COALESCE(MAX(a.no), 0) > r.attempt_no OR COALESCE(MIN(a.no), 1) < 1

-- I2 run counted: Exactly the attempts that counted are charged as iterations.
SELECT r.id, 'is charged ' || r.iterations || ' iterations; '
  || SUM(CASE WHEN a.counted THEN 1 ELSE 0 END) || ' attempts counted'
FROM loops_run r LEFT JOIN loops_attempt a ON a.run_id = r.id
WHERE r.id > %(after)s AND r.id <= %(upto)s
GROUP BY r.id
HAVING r.iterations <> SUM(CASE WHEN a.counted THEN 1 ELSE 0 END)

-- I3 run ledger: What a run has used and reserved is the sum of its ledger.
SELECT r.id, 'has used ' || r.used_model_calls || ' model calls, ' || r.used_tool_calls
  || ' tool calls, ' || (r.used_tokens + r.overrun_tokens) || ' tokens, '
  || (r.used_cost_microusd + r.overrun_cost_microusd) || ' micro-dollars; its ledger says '
  || COALESCE(v.model_calls, 0) || ', ' || COALESCE(v.tool_calls, 0) || ', '
  || COALESCE(v.tokens, 0) || ', ' || COALESCE(v.cost, 0) || '. Reserved are '
  || r.reserved_tokens || ' tokens, ' || r.reserved_cost_microusd || ' micro-dollars; open are '
  || COALESCE(v.open_tokens, 0) || ', ' || COALESCE(v.open_cost, 0)
FROM loops_run r LEFT JOIN (
  SELECT run_id,
    SUM(CASE WHEN state IN ('settled', 'unknown') THEN est_model_calls ELSE 0 END) AS model_calls,
    SUM(CASE WHEN state IN ('settled', 'unknown') THEN est_tool_calls ELSE 0 END) AS tool_calls,
    SUM(CASE WHEN state IN ('settled', 'unknown') THEN COALESCE(actual_tokens, est_tokens)
      ELSE 0 END) AS tokens,
    SUM(CASE WHEN state IN ('settled', 'unknown')
      THEN COALESCE(actual_cost_microusd, est_cost_microusd) ELSE 0 END) AS cost,
    SUM(CASE WHEN state IN ('reserved', 'in_flight') THEN est_model_calls ELSE 0 END)
      AS open_model_calls,
    SUM(CASE WHEN state IN ('reserved', 'in_flight') THEN est_tool_calls ELSE 0 END)
      AS open_tool_calls,
    SUM(CASE WHEN state IN ('reserved', 'in_flight') THEN est_tokens ELSE 0 END) AS open_tokens,
    SUM(CASE WHEN state IN ('reserved', 'in_flight') THEN est_cost_microusd ELSE 0 END)
      AS open_cost
  FROM loops_reservation WHERE run_id > %(after)s AND run_id <= %(upto)s GROUP BY run_id
) v ON v.run_id = r.id
WHERE r.id > %(after)s AND r.id <= %(upto)s AND (
  r.used_model_calls <> COALESCE(v.model_calls, 0)
  OR r.used_tool_calls <> COALESCE(v.tool_calls, 0)
  OR r.used_tokens + r.overrun_tokens <> COALESCE(v.tokens, 0)
  OR r.used_cost_microusd + r.overrun_cost_microusd <> COALESCE(v.cost, 0)
  OR r.reserved_model_calls <> COALESCE(v.open_model_calls, 0)
  OR r.reserved_tool_calls <> COALESCE(v.open_tool_calls, 0)
  OR r.reserved_tokens <> COALESCE(v.open_tokens, 0)
  OR r.reserved_cost_microusd <> COALESCE(v.open_cost, 0))

-- I3 run within: What a run has used and reserved is within its limits.
SELECT r.id, 'is above a limit with what it has used and reserved'
FROM loops_run r
WHERE r.id > %(after)s AND r.id <= %(upto)s AND (
  r.iterations > r.limit_iterations
  OR r.used_model_calls + r.reserved_model_calls > r.limit_model_calls
  OR r.used_tool_calls + r.reserved_tool_calls > r.limit_tool_calls
  OR r.used_tokens + r.reserved_tokens > r.limit_tokens
  OR r.used_cost_microusd + r.reserved_cost_microusd > r.limit_cost_microusd)

-- I3 run granted: The limits of a run are the sum of what it was granted.
SELECT r.id, 'may take ' || r.limit_iterations || ' iterations; granted were ' || l.iterations
  || '. Its other limits may differ from their grants as well'
FROM loops_run r JOIN (
  SELECT run_id, SUM(iterations) AS iterations, SUM(model_calls) AS model_calls,
    SUM(tool_calls) AS tool_calls, SUM(tokens) AS tokens, SUM(cost_microusd) AS cost
  FROM loops_limitgrant WHERE run_id > %(after)s AND run_id <= %(upto)s GROUP BY run_id
) l ON l.run_id = r.id
WHERE r.limit_iterations <> l.iterations
  OR r.limit_model_calls <> l.model_calls OR r.limit_tool_calls <> l.tool_calls
  OR r.limit_tokens <> l.tokens OR r.limit_cost_microusd <> l.cost

-- I3 graph shared: What a graph has used and reserved is the sum of its runs, within its limits.
SELECT g.id, 'has used ' || (g.used_tokens + g.overrun_tokens) || ' tokens and '
  || (g.used_cost_microusd + g.overrun_cost_microusd) || ' micro-dollars; its runs used '
  || SUM(r.used_tokens + r.overrun_tokens) || ' and '
  || SUM(r.used_cost_microusd + r.overrun_cost_microusd)
FROM loops_graph g JOIN loops_run r ON r.graph_id = g.id
WHERE g.id > %(after)s AND g.id <= %(upto)s
GROUP BY g.id
HAVING g.used_model_calls <> SUM(r.used_model_calls)
  OR g.used_tool_calls <> SUM(r.used_tool_calls)
  OR g.used_tokens + g.overrun_tokens <> SUM(r.used_tokens + r.overrun_tokens)
  OR g.used_cost_microusd + g.overrun_cost_microusd
    <> SUM(r.used_cost_microusd + r.overrun_cost_microusd)
  OR g.reserved_model_calls <> SUM(r.reserved_model_calls)
  OR g.reserved_tool_calls <> SUM(r.reserved_tool_calls)
  OR g.reserved_tokens <> SUM(r.reserved_tokens)
  OR g.reserved_cost_microusd <> SUM(r.reserved_cost_microusd)
  OR g.used_model_calls + g.reserved_model_calls > g.limit_model_calls
  OR g.used_tool_calls + g.reserved_tool_calls > g.limit_tool_calls
  OR g.used_tokens + g.reserved_tokens > g.limit_tokens
  OR g.used_cost_microusd + g.reserved_cost_microusd > g.limit_cost_microusd

-- I4 books billed: What the provider billed for a run is at most what its ledger charges.
SELECT r.id, 'was billed ' || %(model_calls)s || ' calls, ' || %(tokens)s || ' tokens, '
  || %(cost_microusd)s || ' micro-dollars; its ledger charges '
  || (r.used_model_calls + r.reserved_model_calls) || ', '
  || (r.used_tokens + r.overrun_tokens + r.reserved_tokens) || ', '
  || (r.used_cost_microusd + r.overrun_cost_microusd + r.reserved_cost_microusd)
FROM loops_run r
WHERE r.id = %(run)s AND (
  r.used_model_calls + r.reserved_model_calls < %(model_calls)s
  OR r.used_tokens + r.overrun_tokens + r.reserved_tokens < %(tokens)s
  OR r.used_cost_microusd + r.overrun_cost_microusd + r.reserved_cost_microusd
    < %(cost_microusd)s)

-- I5 run tokens: The tokens of a run's leases only grow, from attempt to attempt.
SELECT t.run_id, 'has attempt ' || t.no || ' under token ' || t.token || ' after token ' || t.before
FROM (
  SELECT a.run_id, a.no, a.token, r.lease_token,
    LAG(a.token, 1, 0) OVER (PARTITION BY a.run_id ORDER BY a.no) AS before
  FROM loops_attempt a JOIN loops_run r ON r.id = a.run_id
  WHERE a.run_id > %(after)s AND a.run_id <= %(upto)s
) t
WHERE t.token <= t.before OR t.token > t.lease_token

-- I5 run reserved_by_newest: Nothing is reserved under a token once a newer one is at work.
SELECT t.run_id, 'has reservation ' || t.id || ' under token ' || t.token || ' after token '
  || t.before
FROM (
  SELECT v.id, v.run_id, v.token, LAG(v.token, 1, 0) OVER (PARTITION BY v.run_id ORDER BY v.id)
    AS before
  FROM loops_reservation v
  WHERE v.run_id > %(after)s AND v.run_id <= %(upto)s AND v.token > 0
) t
WHERE t.token < t.before

-- I5 run one_live: Exactly one attempt is at work where a run has a lease; it was admitted.
SELECT r.id, 'is ' || r.status || ', admitted ' || COALESCE(CAST(r.admitted_at AS text), 'never')
  || ', with ' || COUNT(a.id) || ' attempts at work'
FROM loops_run r LEFT JOIN loops_attempt a ON a.run_id = r.id AND a.status = 'running'
WHERE r.id > %(after)s AND r.id <= %(upto)s
GROUP BY r.id
HAVING CASE r.status
  WHEN 'running' THEN COUNT(a.id) <> 1 OR MAX(a.no) <> r.attempt_no
    OR MAX(a.token) <> r.lease_token OR r.admitted_at IS NULL OR r.lease_expires_at IS NULL
  WHEN 'queued' THEN COUNT(a.id) > 1 OR r.lease_expires_at IS NOT NULL
  ELSE COUNT(a.id) > 0 OR r.lease_expires_at IS NOT NULL END

-- I6 run leases, swept: No run is left to a worker whose lease ran out.
SELECT r.id, 'belongs to ' || r.lease_owner || ', whose lease ran out at ' || r.lease_expires_at
FROM loops_run r
WHERE r.id > %(after)s AND r.id <= %(upto)s
  AND r.status = 'running' AND r.lease_expires_at < {ago:sweeps}

-- I7 run wakeups, swept: A run that was admitted is claimed, or its wake-up is still to be sent.
SELECT r.id, 'was admitted at ' || r.admitted_at || ', and no wake-up of it is on its way'
FROM loops_run r
WHERE r.id > %(after)s AND r.id <= %(upto)s
  AND r.status = 'queued' AND r.admitted_at < {ago:unclaimed} AND NOT EXISTS (
    SELECT 1 FROM loops_outbox o WHERE o.run_id = r.id AND o.sent_at IS NULL)

-- I7 run written: The wake-up of an admission is written with it.
SELECT r.id, 'was admitted without a wake-up for attempt ' || r.attempt_no
FROM loops_run r
WHERE r.id > %(after)s AND r.id <= %(upto)s
  AND r.status = 'queued' AND r.admitted_at IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM loops_outbox o WHERE o.run_id = r.id AND o.attempt_no = r.attempt_no)

-- I7 run waiting, swept: No run waits while slots are free that nobody else is given.
SELECT r.id, 'waits since ' || r.next_at || ' while slots are free'
FROM loops_run r JOIN loops_task t ON t.id = r.task_id JOIN loops_project p ON p.id = t.project_id
WHERE r.id > %(after)s AND r.id <= %(upto)s
  AND r.status = 'queued' AND r.admitted_at IS NULL AND NOT r.cancel_requested
  AND r.next_at < {ago:waiting}
  AND (SELECT COUNT(*) FROM loops_run h WHERE h.status IN ('queued', 'running')
      AND h.admitted_at IS NOT NULL)
    < COALESCE((SELECT MIN(a.max_running) FROM loops_agentprofile a), %(slots)s)
  AND (SELECT COUNT(*) FROM loops_run h WHERE h.status IN ('queued', 'running')
      AND h.admitted_at IS NOT NULL) < %(slots)s
  AND (SELECT COUNT(*) FROM loops_run h JOIN loops_task ht ON ht.id = h.task_id
      WHERE ht.project_id = p.id AND h.status IN ('queued', 'running')
      AND h.admitted_at IS NOT NULL) < p.max_running
  AND NOT EXISTS (SELECT 1 FROM loops_run x WHERE x.admitted_at > {ago:sweeps})
  AND NOT EXISTS (SELECT 1 FROM loops_agentprofile a WHERE a.resting_until > {now})
  AND NOT EXISTS (SELECT 1 FROM loops_hold h WHERE h.target IN ('all', 'switch')
    OR h.run_id = r.id OR h.project_id = p.id)
  AND NOT EXISTS (SELECT 1 FROM loops_projectday d WHERE d.project_id = p.id
    AND d.starts_at <= {now} AND d.ends_at > {now} AND (d.closed
      OR d.limit_tokens <= d.used_tokens + d.overrun_tokens
      OR d.limit_cost_microusd <= d.used_cost_microusd + d.overrun_cost_microusd))

-- I8 run deadlines, swept: No run goes on past its deadline.
SELECT r.id, 'is ' || r.status || ' past its deadline of ' || r.deadline_at
FROM loops_run r
WHERE r.id > %(after)s AND r.id <= %(upto)s
  AND r.status NOT IN ({terminal}) AND r.deadline_at < {ago:sweeps}

-- I9 run consumed: Each decision at the gate is carried out at most once.
SELECT r.id, 'moved on by a person ' || e.moves || ' times, by ' || (
    SELECT COUNT(*) FROM loops_escalation x WHERE x.run_id = r.id AND x.status = 'decided')
  || ' decisions'
FROM loops_run r JOIN (
  SELECT run_id, COUNT(*) AS moves FROM loops_event
  WHERE run_id > %(after)s AND run_id <= %(upto)s
    AND kind IN ('continued', 'refactored', 'answered', 'accepted', 'closed', 'governed')
  GROUP BY run_id
) e ON e.run_id = r.id
WHERE e.moves > (
  SELECT COUNT(*) FROM loops_escalation x WHERE x.run_id = r.id AND x.status = 'decided')

-- I9 run asked: People are asked about a run exactly while it is at the gate.
SELECT r.id, 'is ' || r.status || ' with ' || COUNT(x.id) || ' open items'
FROM loops_run r LEFT JOIN loops_escalation x ON x.run_id = r.id AND x.status = 'open'
WHERE r.id > %(after)s AND r.id <= %(upto)s
GROUP BY r.id
HAVING (r.status = 'at_gate') <> (COUNT(x.id) > 0)

-- I9 run signed: A decision is complete: what, when.
SELECT x.run_id, 'has item ' || x.id || ', ' || x.status || ' with decision "' || x.decision || '"'
FROM loops_escalation x
WHERE x.run_id > %(after)s AND x.run_id <= %(upto)s
  AND ((x.status = 'decided') <> (x.decision <> '')
    OR (x.status = 'open') <> (x.decided_at IS NULL))

-- I10 run done_once: Each effect is done once.
SELECT s.run_id, 'did step ' || s.seq || ' of attempt ' || s.attempt_no || ' '
  || COUNT(*) || ' times'
FROM loops_step s
WHERE s.run_id > %(after)s AND s.run_id <= %(upto)s AND s.status = 'done'
GROUP BY s.run_id, s.attempt_no, s.seq
HAVING COUNT(*) > 1

-- I10 run done_and_charged: An effect that was done stands in the ledger.
SELECT s.run_id, 'did step ' || s.seq || ' of attempt ' || s.attempt_no || ' without a charge'
FROM loops_step s
WHERE s.run_id > %(after)s AND s.run_id <= %(upto)s AND s.status = 'done' AND NOT EXISTS (
  SELECT 1 FROM loops_reservation v WHERE v.run_id = s.run_id AND v.attempt_no = s.attempt_no
    AND v.seq = s.seq AND v.state IN ('settled', 'unknown'))
