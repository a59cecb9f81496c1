"""URLs in messages and reports, without their users, passwords and signatures."""

import re
import shlex
from collections.abc import Sequence

# A quote or parenthesis ends an address, unless more of a word follows: both are legal in one.
_INSIDE = r"['\")]+(?=[^\s'\")]?[\w%&=+/~-])"
_CHARACTER, _NAME = rf"(?:[^\s&'\")]|{_INSIDE})", rf"(?:[^\s&=?'\")]|{_INSIDE})"
_USER = re.compile(r"(\w://)[^/?#\s]*@")
_QUERY = re.compile(
    rf"(?<=[?&])(?!(?:alt|dl|download|raw|ref|revision|version)=){_NAME}*=?{_CHARACTER}*"
)
_ADDRESS = re.compile(rf"(?:\w+://|with url: /)(?:&|{_CHARACTER})*\?(?:&|{_CHARACTER})*")


def without_secrets(text: str) -> str:
    """Replaces users, passwords and possible signatures in the URLs of a text by `***`.

    Example:
        >>> without_secrets("see https://me:secret@example.org/model.npz?download=1&token=secret")
        'see https://***@example.org/model.npz?download=1&***'
    """
    return _ADDRESS.sub(lambda found: _QUERY.sub("***", found[0]), _USER.sub(r"\1***@", text))


def join_command(words: Sequence[str]) -> str:
    """Returns a command line for a shell, with URLs as `without_secrets` leaves them.

    Example:
        >>> join_command(["python", "run.py", "--weights=https://example.org/model.npz?token=secret"])
        "python run.py '--weights=https://example.org/model.npz?***'"
    """
    return shlex.join([without_secrets(word) for word in words])
