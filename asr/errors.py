"""Errors for users: one sentence that names what was given, what was expected and the mend.

Everything else that goes wrong is a bug, and stays an ordinary exception with its traceback.
"""


class AsrError(Exception):
    """Any failure that the user can mend; `exit_code` is what the command line exits with."""

    exit_code = 1


class ConfigError(AsrError):
    """A configuration or a command line that cannot be obeyed."""

    exit_code = 2


class DataError(AsrError):
    """A corpus or a manifest that cannot be used."""

    exit_code = 3


class AudioError(AsrError):
    """One recording that cannot be read as speech; `code` is a stable word for programs."""

    exit_code = 1

    def __init__(self, message: str, code: str = "unreadable_audio") -> None:
        super().__init__(message)
        self.code = code


class BundleError(AsrError):
    """A model bundle that is missing, damaged or not ours."""

    exit_code = 4


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory gave out: Python's own, or torch's, which has a class on a GPU only."""
    told = ("out of memory", "allocate memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(each in str(error) for each in told)
