"""The only writer of tasks and runs. Every change leaves its event in the same transaction."""
