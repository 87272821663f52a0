"""How does an object show itself in a notebook? A picture, and what it prints.

The picture goes in as an image: the style in an SVG would be the whole page's.
"""

from __future__ import annotations

from base64 import b64encode
from html import escape

__all__ = ["shown"]


def shown(words: str, svg: str = "", width: int = 720) -> str:
    text = f"<pre>{escape(words)}</pre>"
    if not svg:
        return text
    data = b64encode(svg.encode()).decode()
    picture = f'<img alt="" style="max-width: {width}px" src="data:image/svg+xml;base64,{data}">'
    return f"<div>{picture}{text}</div>"
