"""What the library was told, where this package has to know it, too. The library looks in the same places, in this order."""
import os
import re
from typing import Any, Mapping, Optional


def setting(name: str, options: Mapping[str, Any]) -> Optional[str]:
    """Of a client that was opened with these options: what they say, else the environment, else the config file, in which
    it has a line of its own. None: nobody says it."""
    given = options.get(name)
    if given is not None and given != -1:
        return str(given)
    variable = os.environ.get("BPS_" + name.upper())
    if variable is not None:
        return variable
    path = options.get("config_file") or os.environ.get("BPS_CONFIG")
    if not path:
        return None
    key = name.replace("_", "-")
    with open(path, encoding="utf-8") as file:
        found = re.search(rf"""^\s*["']?{key}["']?\s*=\s*("[^"]*"|'[^']*'|[^#\s]+)""", file.read(), re.MULTILINE)
    return found.group(1).strip("\"'") if found else None
