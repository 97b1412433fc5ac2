-- The hot statements, by name. {now} is the database's clock, {epoch} the same in seconds since 1970,
-- {after:x} is x seconds from now, {left:c} the seconds until column c, {json:x} a JSON parameter,
-- {part:x} the text of x. Everything else in the product goes through the ORM.

-- claim: take the next attempt, if the run is still where the message thinks it is and not held
UPDATE loops_run SET
  status = 'running', lease_token = lease_token + 1, lease_owner = %(worker)s,
  lease_expires_at = {after:lease}, attempt_deadline_at = {after:attempt},
  version = version + 1, event_seq = event_seq + 1,
  started_at = COALESCE(started_at, {now}), updated_at = {now}
WHERE id = %(run)s AND attempt_no = %(no)s AND status = 'queued' AND NOT cancel_requested
  AND admitted_at IS NOT NULL AND next_at <= {now}
  AND (deadline_at IS NULL OR deadline_at > {now})
  AND NOT EXISTS (SELECT 1 FROM loops_hold h WHERE h.target IN ('all', 'switch')
    OR h.run_id = loops_run.id
    OR h.project_id = (SELECT t.project_id FROM loops_task t WHERE t.id = loops_run.task_id))
RETURNING lease_token, event_seq, {left:deadline_at}, limit_active_seconds, active_ms

-- open_attempt: its row, or the one that a lost worker left; an abandoned one begins anew
INSERT INTO loops_attempt (run_id, no, status, token, claims, worker, counted, label, judgment,
  feedback, error, tree_before, tree_after, pack, used_tokens, used_cost_microusd, started_at)
VALUES (%(run)s, %(no)s, 'running', %(token)s, 1, %(worker)s, %(false)s, '', '', '', '', %(tree)s,
  '', '', 0, 0, {now})
ON CONFLICT (run_id, no) DO UPDATE SET
  status = 'running', token = excluded.token, worker = excluded.worker, ended_at = NULL, error = '',
  claims = CASE WHEN loops_attempt.status = 'running' THEN loops_attempt.claims + 1 ELSE 1 END
RETURNING claims

-- heartbeat: keep the lease, unless the run was cancelled, taken over, stopped or is out of time
UPDATE loops_run SET lease_expires_at = {after:lease}
WHERE id = %(run)s AND lease_token = %(token)s AND status = 'running' AND NOT cancel_requested
  AND lease_expires_at > {now} AND attempt_deadline_at > {now}
  AND (deadline_at IS NULL OR deadline_at > {now})
  AND NOT EXISTS (SELECT 1 FROM loops_hold h WHERE h.target = 'switch')

-- booked: part of what reserves, on each of the three budget rows
  reserved_model_calls = reserved_model_calls + %(model_calls)s,
  reserved_tool_calls = reserved_tool_calls + %(tool_calls)s,
  reserved_tokens = reserved_tokens + %(tokens)s,
  reserved_cost_microusd = reserved_cost_microusd + %(cost_microusd)s

-- fits: part of what reserves: an axis that a call does not use does not refuse it
  (limit_model_calls IS NULL OR %(model_calls)s = 0
    OR used_model_calls + reserved_model_calls + %(model_calls)s <= limit_model_calls)
  AND (limit_tool_calls IS NULL OR %(tool_calls)s = 0
    OR used_tool_calls + reserved_tool_calls + %(tool_calls)s <= limit_tool_calls)
  AND (limit_tokens IS NULL OR %(tokens)s = 0
    OR used_tokens + overrun_tokens + reserved_tokens + %(tokens)s <= limit_tokens)
  AND (limit_cost_microusd IS NULL OR %(cost_microusd)s = 0
    OR used_cost_microusd + overrun_cost_microusd + reserved_cost_microusd + %(cost_microusd)s
      <= limit_cost_microusd)

-- caps: part of what reserves: what the counters in Redis hold against it
  limit_model_calls, limit_tool_calls, limit_tokens, limit_cost_microusd

-- reserve: the authority on the budget; no row: it does not fit on an axis it uses, or no lease
UPDATE loops_run SET {part:booked}, version = version + 1
WHERE id = %(run)s AND lease_token = %(token)s AND status = 'running' AND NOT cancel_requested
  AND lease_expires_at > {now} AND (deadline_at IS NULL OR deadline_at > {now})
  AND NOT EXISTS (SELECT 1 FROM loops_hold h WHERE h.target = 'switch')
  AND {part:fits}
RETURNING id, graph_id, task_id, {part:caps}

-- reserve_graph: the same on what a graph's runs share, after the run's own row
UPDATE loops_graph SET {part:booked} WHERE id = %(graph)s AND {part:fits}
RETURNING id, {part:caps}

-- reserve_day: the same on the project's day, last; no row: it does not fit, or no day is open
UPDATE loops_projectday SET {part:booked}
WHERE project_id = (SELECT project_id FROM loops_task WHERE id = %(task)s)
  AND starts_at <= {now} AND ends_at > {now} AND NOT closed AND {part:fits}
RETURNING id, {part:caps}

-- open_reservation: its row in the ledger
INSERT INTO loops_reservation (run_id, day_id, attempt_no, seq, token, state, est_model_calls,
  est_tool_calls, est_tokens, est_cost_microusd, created_at)
VALUES (%(run)s, %(day)s, %(no)s, %(seq)s, %(token)s, 'reserved', %(model_calls)s,
  %(tool_calls)s, %(tokens)s, %(cost_microusd)s, {now})
RETURNING id

-- open_step: the step's row, or the one that a lost worker left unfinished
INSERT INTO loops_step (run_id, attempt_no, seq, kind, role, name, input_digest, status, output,
  prompt, tree_after, error, started_at)
VALUES (%(run)s, %(no)s, %(seq)s, %(kind)s, %(role)s, %(name)s, %(digest)s, 'running', '',
  %(prompt)s, '', '', {now})
ON CONFLICT (run_id, attempt_no, seq) DO UPDATE SET
  kind = excluded.kind, role = excluded.role, name = excluded.name, prompt = excluded.prompt,
  input_digest = excluded.input_digest, status = 'running', error = '',
  started_at = excluded.started_at

-- send: the last moment before the bytes go out; no row: voided by a rebuild, or it must stop
UPDATE loops_reservation SET state = 'in_flight'
WHERE id = %(id)s AND state = 'reserved' AND EXISTS (
  SELECT 1 FROM loops_run r WHERE r.id = loops_reservation.run_id
    AND r.lease_token = loops_reservation.token AND r.status = 'running'
    AND NOT r.cancel_requested AND r.lease_expires_at > {now}
    AND (r.deadline_at IS NULL OR r.deadline_at > {now}))
  AND NOT EXISTS (SELECT 1 FROM loops_hold h WHERE h.target = 'switch')

-- close_reservation: from open to its end, once; what was sent meanwhile is never given back
UPDATE loops_reservation SET state = %(state)s, actual_tokens = %(actual_tokens)s,
  actual_cost_microusd = %(actual_cost)s
WHERE id = %(id)s
  AND (state = 'reserved' OR state = 'in_flight' AND %(state)s IN ('settled', 'unknown'))
RETURNING run_id, day_id, attempt_no,
  est_model_calls, est_tool_calls, est_tokens, est_cost_microusd

-- moved: part of what settles, on each of the three budget rows
  reserved_model_calls = reserved_model_calls - %(est_model_calls)s,
  reserved_tool_calls = reserved_tool_calls - %(est_tool_calls)s,
  reserved_tokens = reserved_tokens - %(est_tokens)s,
  reserved_cost_microusd = reserved_cost_microusd - %(est_cost)s,
  used_model_calls = used_model_calls + %(model_calls)s,
  used_tool_calls = used_tool_calls + %(tool_calls)s,
  used_tokens = used_tokens + %(tokens)s,
  used_cost_microusd = used_cost_microusd + %(cost)s,
  overrun_tokens = overrun_tokens + %(over_tokens)s,
  overrun_cost_microusd = overrun_cost_microusd + %(over_cost)s

-- settle: move a closed reservation from reserved to used; allowed without the lease
UPDATE loops_run SET {part:moved}, version = version + 1 WHERE id = %(run)s
RETURNING graph_id

-- settle_graph: the same on what a graph's runs share
UPDATE loops_graph SET {part:moved} WHERE id = %(graph)s

-- settle_day: the same on the day that it was booked on, also when that is over
UPDATE loops_projectday SET {part:moved} WHERE id = %(day)s

-- settle_attempt: the same on the attempt, for its line in the timeline
UPDATE loops_attempt SET used_tokens = used_tokens + %(tokens)s,
  used_cost_microusd = used_cost_microusd + %(cost)s
WHERE run_id = %(run)s AND no = %(no)s

-- close_step: record the result under the lease
UPDATE loops_step SET status = %(status)s, result = {json:result}, output = %(output)s,
  tree_after = %(tree)s, error = %(error)s, ended_at = {now}
WHERE run_id = %(run)s AND attempt_no = %(no)s AND seq = %(seq)s AND EXISTS (
  SELECT 1 FROM loops_run r WHERE r.id = %(run)s AND r.lease_token = %(token)s
    AND r.status = 'running')

-- finish: the attempt is over; no row means that somebody else has the run now
UPDATE loops_run SET
  status = %(status)s, stop_reason = %(stop_reason)s, reason = %(reason)s,
  version = version + 1, event_seq = event_seq + 1, attempt_no = attempt_no + 1,
  iterations = iterations + %(iterations)s, errors = errors + %(errors)s,
  active_ms = active_ms + %(active_ms)s, lease_expires_at = NULL, attempt_deadline_at = NULL,
  next_at = {after:delay}, admitted_at = NULL, state = {json:state}, feedback = %(feedback)s,
  tree = %(tree)s, result = {json:result},
  ended_at = CASE WHEN %(ends)s THEN {now} ELSE NULL END, updated_at = {now}
WHERE id = %(run)s AND lease_token = %(token)s AND status = 'running' AND attempt_no = %(no)s
  AND NOT cancel_requested AND lease_expires_at > {now}
  AND (deadline_at IS NULL OR deadline_at > {now})
RETURNING event_seq

-- close_attempt: what the attempt came to
UPDATE loops_attempt SET status = %(attempt_status)s, counted = %(counted)s, label = %(label)s,
  judgment = %(judgment)s, feedback = %(shown)s, error = %(error)s, tree_after = %(tree_after)s,
  pack = %(pack)s, ended_at = {now}
WHERE run_id = %(run)s AND no = %(no)s AND token = %(token)s

-- add_event: one line of the run's history
INSERT INTO loops_event (run_id, seq, kind, text, data, actor, created_at)
VALUES (%(run)s, %(seq)s, %(kind)s, %(text)s, {json:data}, %(actor)s, {now})

-- clock: what time the database says it is, in seconds since 1970
SELECT {epoch}
