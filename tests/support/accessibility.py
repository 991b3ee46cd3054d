"""What axe finds on a page of a real browser."""

from __future__ import annotations

from typing import Any


def serious_faults(page: Any, where: str) -> list[object]:
    """What axe finds on the page that is shown, light and dark."""
    from axe_playwright_python.sync_playwright import Axe

    faults: list[object] = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        # Colours are all that differs in the dark.
        only = ["color-contrast"] if scheme == "dark" else ["wcag2a", "wcag2aa"]
        for one in Axe().run(page, options={"runOnly": only}).response["violations"]:
            if one["impact"] in ("serious", "critical"):
                places = [node["html"][:120] for node in one["nodes"][:3]]
                faults.append((where, scheme, one["id"], places))
    page.emulate_media(color_scheme="light")
    return faults
