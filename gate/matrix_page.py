"""The compatibility table as one page that needs nothing else: each pair opens on click. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1c1c1c }
table { border-collapse: collapse; width: 100%; table-layout: fixed }
th, td { border: 1px solid #c9c9c9; padding: .35rem .5rem; text-align: left; vertical-align: top }
th, td { overflow-wrap: anywhere }
td.holds { background: #e3f3e6 } td.known { background: #fff4d6 } td.broken { background: #fbe3e1 }
td.untold { background: #ececec }
summary { cursor: pointer } ul { padding-left: 1.1rem; margin: .4rem 0; font-size: 13px }
"""


def page(data: Mapping[str, Any]) -> str:
    """``compatibility.html`` from the content of ``compatibility.json``."""
    rows, columns = data["rows"], data["columns"]
    head = "".join(f"<th scope=col>{escape(columns['package'])} {escape(v)}</th>" for v in columns["versions"])
    lines = [
        f"<tr><th scope=row>{escape(rows['package'])} {escape(version)}</th>{''.join(map(_cell, line))}</tr>"
        for version, line in zip(rows["versions"], data["cells"], strict=True)
    ]
    made = f"Made by <code>tox run -e matrix</code> with <code>-k '{escape(data['cases'])}'</code>."
    title = f"{escape(rows['package'])} x {escape(columns['package'])}"
    return "\n".join([
        "<!doctype html>", f"<html lang=en><meta charset=utf-8><title>{title}</title>",
        '<meta name=viewport content="width=device-width, initial-scale=1">', f"<style>{_STYLE}</style>",
        f"<h1>{title}</h1>",
        f"<p>The lowest rung that breaks in each pair of releases; click for all rungs and broken claims. {made}</p>",
        "<p>Known: there is a report upstream, and all else holds.</p>",
        f"<table><thead><tr><td></td>{head}</tr></thead><tbody>", *lines, "</tbody></table></html>", "",
    ])


def _cell(cell: Mapping[str, Any]) -> str:
    return (
        f"<td class={_kind(cell)}><details><summary>{escape(_word(cell))}</summary>"
        f"<ul>{''.join(_rows(cell))}</ul></details></td>"
    )


def _kind(cell: Mapping[str, Any]) -> str:
    if cell["lowest"] in ("holds", "untold"):
        return str(cell["lowest"])
    return "known" if all(one["known"] for one in cell["broken"]) else "broken"


def _word(cell: Mapping[str, Any]) -> str:
    if cell["lowest"] == "untold":
        return "cannot tell"
    if cell["lowest"] == "holds":
        return "all rungs hold"
    new = [one["rung"] for one in cell["broken"] if not one["known"]]  # lowest first
    return f"breaks: {new[0]}" if new else f"known: {cell['lowest']}"


def _rows(cell: Mapping[str, Any]) -> list[str]:
    told = [f"<li>{escape(cell['problem'])}</li>"] if cell["problem"] else []
    told += [
        f"<li>{escape(rung)}: {held} hold{f', <b>{failed} fail</b>' if failed else ''}</li>"
        for rung, (held, failed) in cell["rungs"].items()
    ]
    for one in cell["broken"]:
        link = f' (<a href="{escape(one["known"])}">known</a>)' if one["known"] else ""
        told.append(f"<li>[{escape(one['rung'])}] {escape(one['claim'])}{link}</li>")
    return told
