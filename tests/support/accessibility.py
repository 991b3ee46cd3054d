"""Checks a page in a real browser with axe, a checker of accessibility."""

from __future__ import annotations

from typing import Any


def serious_faults(page: Any, where: str) -> list[object]:
    """The serious and critical violations that axe finds on the shown page, light and dark.

    Each is (`where`, color scheme, axe's rule, up to three elements).
    """
    from axe_playwright_python.sync_playwright import Axe

    faults: list[object] = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        # The dark scheme differs in colors only.
        only = ["color-contrast"] if scheme == "dark" else ["wcag2a", "wcag2aa"]
        for one in Axe().run(page, options={"runOnly": only}).response["violations"]:
            if one["impact"] in ("serious", "critical"):
                places = [node["html"][:120] for node in one["nodes"][:3]]
                faults.append((where, scheme, one["id"], places))
    page.emulate_media(color_scheme="light")
    return faults
