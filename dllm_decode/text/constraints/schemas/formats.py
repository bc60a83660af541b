"""The formats of strings that are followed; formats of other names are annotations."""

from functools import cache

from dllm_decode.text.constraints.machines.ecma import full_match
from dllm_decode.text.constraints.machines.languages import Language

_MINUTE = "([01][0-9]|2[0-3]):[0-5][0-9]"
_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
# Without the year 0000, which dates of Python do not have.
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEARS = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = f"({_YEAR}-{_DAY}|{_LEAP_YEARS}-02-29)"
_TIME = rf"{_MINUTE}:[0-5][0-9](\.[0-9]+)?(Z|[+\-]{_MINUTE})"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "|".join([
    f"({_GROUP}:){{7}}{_GROUP}", f"({_GROUP}(:{_GROUP}){{0,6}})::",
    f"::({_GROUP}(:{_GROUP}){{0,5}})?",
    *(f"({_GROUP}:){{{before}}}(:{_GROUP}){{1,{7 - before}}}" for before in range(1, 7)),
])  # fmt: skip
_LABEL = "[a-zA-Z0-9](-?[a-zA-Z0-9])*"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_CHARACTER = rf"([a-zA-Z0-9._~!$&'()*+,;=:@\-]|%{_HEX}{{2}})"
_SEGMENT = _CHARACTER.replace(":", "")
_PATH = f"{_CHARACTER}+(/{_CHARACTER}*)*"
_NAME = r"[a-zA-Z0-9]([a-zA-Z0-9\-]*[a-zA-Z0-9])?"
_AUTHORITY = rf"//{_NAME}(\.{_NAME})*(:[0-9]{{1,5}})?(/{_CHARACTER}*)*"
_TAIL = rf"(\?({_CHARACTER}|[/?])*)?(#({_CHARACTER}|[/?])*)?"
_URI = rf"[a-zA-Z][a-zA-Z0-9+.\-]*:({_AUTHORITY}|/?{_PATH}){_TAIL}"
_REFERENCE = (
    rf"({_URI}|{_AUTHORITY}{_TAIL}|/({_PATH})?{_TAIL}|({_SEGMENT}+(/{_CHARACTER}*)*)?{_TAIL})"
)
_LOCAL = r"[a-zA-Z0-9_%+\-]+(\.[a-zA-Z0-9_%+\-]+)*"
_SECONDS = "[0-9]+S"
_MINUTES = f"[0-9]+M({_SECONDS})?"
_HOURS = f"[0-9]+H({_MINUTES})?"
_DAYS = f"[0-9]+D(T({_HOURS}|{_MINUTES}|{_SECONDS}))?"
_MONTHS = f"[0-9]+M({_DAYS})?"

_EXPRESSIONS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P([0-9]+W|[0-9]+Y({_MONTHS})?|{_MONTHS}|{_DAYS}"
    f"|T({_HOURS}|{_MINUTES}|{_SECONDS}))",
    "email": rf"{_LOCAL}@({_NAME}\.)+[a-zA-Z]{{2,}}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "ipv4": rf"{_OCTET}(\.{_OCTET}){{3}}",
    "ipv6": _IPV6,
    "hostname": _HOST,
    "uri": _URI,
    "uri-reference": _REFERENCE,
    "json-pointer": r"(/([^~/\u0000-\u001f]|~[01])*)*",
    "relative-json-pointer": "(0|[1-9][0-9]*)#?",
    "uri-template": _URI,
    "regex": "[a-zA-Z0-9 _]*",
}  # fmt: skip
# Texts in ASCII are valid for both.
_EXPRESSIONS |= {
    "idn-email": _EXPRESSIONS["email"], "idn-hostname": _HOST, "iri": _URI,
    "iri-reference": _REFERENCE,
}  # fmt: skip

NAMES = frozenset(_EXPRESSIONS)
"""The formats that are followed."""


@cache
def texts_of(name: str) -> Language:
    """Returns the texts of a format, or most of them."""
    texts = full_match(_EXPRESSIONS[name])
    if "hostname" in name:
        # At most 4 labels of 62 characters are within 253 characters.
        texts &= full_match(r"[^.]{1,62}(\.[^.]{1,62}){0,3}")
    return texts
