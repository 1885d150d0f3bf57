"""The one error users meet."""


class SlalomError(ValueError):
    """Bad input or a missing resource, told in one sentence that says what to do; and the field it is about, if any."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field  # of a text's specification
