"""REST under /api/v1: bearer tokens only, problem documents for every error."""
