"""The one exception type that a user of rlx is meant to see."""


class RlxError(Exception):
    """A request that rlx cannot serve: says what was expected, what came, where, and what to do."""
