"""The values of `format` that are enforced.

Dates and times are our own: llguidance's let the 29th of February pass in every year and a 60th second at any time.
"""

_YEAR = "[12][0-9]{3}"
_LEAP = "(?:[12][0-9](?:0[48]|[2468][048]|[13579][26])|(?:12|16|20|24|28)00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
"""Years 1000 to 2999."""
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""Format → the pattern that stands for it."""

NATIVE = frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
"""Formats that llguidance has itself."""
