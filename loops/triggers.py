"""Database triggers behind the compare-and-set: what has ended cannot be given another status.

On SQLite a migration that rebuilds `loops_run` or `loops_graph` drops the triggers with the old
table. Such a migration runs `RunPython(install, remove)` as its last operation.
"""

from __future__ import annotations

from typing import Any

from loops.core.lifecycle import TERMINAL

_TABLES = {
    "loops_run": ", ".join(f"'{status}'" for status in sorted(TERMINAL)),
    "loops_graph": "'ended'",
}
_SENTENCE = "what has ended keeps its status"
_FUNCTION = f"""
CREATE OR REPLACE FUNCTION loops_terminal_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '{_SENTENCE}: % %', TG_TABLE_NAME, OLD.id USING ERRCODE = 'check_violation';
END $$
"""
_TRIGGERS = {
    "postgresql": """
CREATE TRIGGER {table}_terminal_is_final BEFORE UPDATE OF status ON {table} FOR EACH ROW
WHEN (OLD.status IN ({ended}) AND NEW.status IS DISTINCT FROM OLD.status)
EXECUTE FUNCTION loops_terminal_is_final()
""",
    "sqlite": """
CREATE TRIGGER {table}_terminal_is_final BEFORE UPDATE OF status ON {table} FOR EACH ROW
WHEN OLD.status IN ({ended}) AND NEW.status IS NOT OLD.status
BEGIN SELECT RAISE(ABORT, '{sentence}'); END
""",
}


def install(_apps: Any, schema_editor: Any) -> None:
    """Put the triggers there, or back. For `RunPython`."""
    remove(_apps, schema_editor)
    vendor = schema_editor.connection.vendor
    if vendor == "postgresql":
        schema_editor.execute(_FUNCTION, params=None)
    for table, ended in _TABLES.items():
        sql = _TRIGGERS[vendor].format(table=table, ended=ended, sentence=_SENTENCE)
        schema_editor.execute(sql, params=None)


def remove(_apps: Any, schema_editor: Any) -> None:
    """Take the triggers away. For `RunPython`."""
    postgres = schema_editor.connection.vendor == "postgresql"
    for table in _TABLES:
        on = f" ON {table}" if postgres else ""
        schema_editor.execute(f"DROP TRIGGER IF EXISTS {table}_terminal_is_final{on}", params=None)
    if postgres:
        schema_editor.execute("DROP FUNCTION IF EXISTS loops_terminal_is_final()", params=None)
