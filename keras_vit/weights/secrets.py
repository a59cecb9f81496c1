"""URLs in messages and reports, without their users, passwords and signatures."""

import re

_USER = re.compile(r"(\w://)[^/?#\s]*@")
_QUERY = re.compile(
    r"(?<=[?&])(?!(?:alt|dl|download|raw|ref|revision|version)=)[^\s&=?'\")]*=?[^\s&'\")]*"
)
_ADDRESS = re.compile(r"(?:\w+://|with url: /)[^\s'\")]*\?[^\s'\")]*")


def without_secrets(text: str) -> str:
    """Replaces users, passwords and possible signatures in the URLs of a text by `***`.

    Example:
        >>> without_secrets("see https://me:secret@example.org/model.npz?download=1&token=secret")
        'see https://***@example.org/model.npz?download=1&***'
    """
    return _ADDRESS.sub(lambda found: _QUERY.sub("***", found[0]), _USER.sub(r"\1***@", text))
