"""Errors for users: one sentence that says what was given, what was expected and what to do.

Everything else that goes wrong is a bug, and stays an ordinary exception with its traceback.
"""

_LONGEST = 4000  # characters of a message, which may quote megabytes of a file


class AsrError(Exception):
    """Any failure that the user can fix; the command line ends with its `exit_code`."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= _LONGEST else message[:_LONGEST] + "…")


class ConfigError(AsrError):
    """An invalid configuration or command line."""

    exit_code = 2


class DataError(AsrError):
    """An unusable corpus or manifest."""

    exit_code = 3


class NotWrittenError(DataError):
    """A corpus that cannot be written, as on a full disk; the files already written stay."""


class AudioError(AsrError):
    """One recording that cannot be read as speech; `code` is a stable word for programs."""

    def __init__(self, message: str, code: str = "unreadable_audio") -> None:
        super().__init__(message)
        self.code = code


class BundleError(AsrError):
    """A model bundle that is missing, damaged or written by another program."""

    exit_code = 4


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out.

    Torch has a class for this error on GPUs only, so the message is searched for signs of it.
    """
    signs = ("out of memory", "allocate memory", "bad_alloc", "failed to map", "start new thread")
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)
