"""The one error users meet."""


class SlalomError(ValueError):
    """Bad input or a missing resource, told in one sentence that says what to do."""
