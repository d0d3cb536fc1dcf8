"""Write docs/pictures/slots, one picture per slot: where it sits in the data flow of training and of the model.

python -m tools.slot_pictures
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from headtohead.nn.parts.registry import SLOTS

PICTURES_FOLDER = Path(__file__).parents[1] / "docs" / "pictures" / "slots"
WIDTH = 880
HEIGHT = 360
BOX_HEIGHT = 30
SLOT_BOXES: dict[str, list[tuple[float, float, float, str]]] = {
    "order": [(110, 20, 70, "order")],
    "embedding": [(280, 20, 90, "embedding")],
    "position": [(390, 20, 80, "position"), (304, 184, 80, "position"), (456, 124, 80, "position")],
    "stack": [(20, 72, 52, "stack")],
    "block": [(92, 86, 52, "block")],
    "norm": [(100, 184, 62, "norm"), (640, 184, 62, "norm")],
    "projection": [(200, 184, 84, "projection")],
    "pattern": [(366, 124, 80, "pattern")],
    "attention": [(192, 98, 80, "attention")],
    "merge": [(508, 184, 80, "merge")],
    "feedforward": [(722, 184, 100, "feedforward")],
    "output": [(560, 4, 70, "output")],
    "pool": [(560, 38, 70, "pool")],
    "objective": [(740, 20, 90, "objective")],
    "optimizer": [(300, 278, 90, "optimizer")],
    "schedule": [(300, 322, 90, "schedule")],
    "init": [(165, 322, 80, "init")],
    "average": [(20, 278, 90, "average")],
}
"""x, y, width and label of the boxes of each slot, in pixels"""
FRAMES = ((12, 70, 856, 194), (84, 84, 776, 172), (186, 96, 420, 150))
"""x, y, width and height of stack, block and attention, which contain other slots"""
VALUE_BOXES = (
    *((20, 20, 72, "text"), (198, 20, 64, "batch"), (404, 184, 84, "scores"), (660, 20, 60, "logits")),
    *((165, 278, 80, "weights"), (445, 278, 80, "gradient")),
)
ARROWS = (
    *((92, 35, 110, 35), (180, 35, 198, 35), (262, 35, 280, 35), (370, 35, 390, 35), (430, 50, 430, 70)),
    *((520, 70, 560, 24), (520, 70, 560, 58), (630, 19, 660, 31), (630, 53, 660, 41), (720, 35, 740, 35)),
    *((162, 199, 200, 199), (284, 199, 304, 199), (384, 199, 404, 199), (488, 199, 508, 199), (588, 199, 640, 199)),
    *((702, 199, 722, 199), (416, 154, 432, 184), (486, 154, 464, 184)),
    *((445, 293, 390, 293), (300, 293, 245, 293), (165, 293, 110, 293), (345, 322, 345, 308), (205, 322, 205, 308)),
)
TEXT_LABELS = ((772, 124, "+ residual"), (640, 285, "backward"))


def draw_slot_picture(slot: str) -> str:
    """Return the picture of the data flow as SVG, with the boxes of one slot highlighted."""
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"',
        ' font-size="13">',
        f"<title>{escape(slot)} in the data flow</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">',
        '<path d="M0 0L8 4L0 8z" fill="#666666"/></marker></defs>',
    ]
    for x, y, width, height in FRAMES:
        elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="none" stroke="#b0b0b0"/>'
        )
    for x1, y1, x2, y2 in ARROWS:
        elements.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#666666" marker-end="url(#tip)"/>')
    elements.append('<path d="M830 35H874V293H525" fill="none" stroke="#666666" marker-end="url(#tip)"/>')
    for x, y, label in TEXT_LABELS:
        elements.append(f'<text x="{x}" y="{y}" fill="#666666" text-anchor="middle">{label}</text>')
    for x, y, width, label in VALUE_BOXES:
        elements.append(_draw_box(x, y, width, label, fill="#f2f2f2", stroke="#b0b0b0", weight="normal"))
    for name, boxes in SLOT_BOXES.items():
        is_highlighted = name == slot
        for x, y, width, label in boxes:
            colors = (
                {"fill": "#ffd58a", "stroke": "#b36b00"} if is_highlighted else {"fill": "#ffffff", "stroke": "#666666"}
            )
            elements.append(_draw_box(x, y, width, label, **colors, weight="bold" if is_highlighted else "normal"))
    return "\n".join([*elements, "</svg>"]) + "\n"


def _draw_box(x: float, y: float, width: float, label: str, *, fill: str, stroke: str, weight: str) -> str:
    """Return a labeled box as SVG."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{BOX_HEIGHT}" rx="4" fill="{fill}" stroke="{stroke}"/>'
        f'<text x="{x + width / 2}" y="{y + 20}" text-anchor="middle" font-weight="{weight}">{escape(label)}</text>'
    )


def main() -> None:
    PICTURES_FOLDER.mkdir(parents=True, exist_ok=True)
    for slot in SLOTS:
        (PICTURES_FOLDER / f"{slot}.svg").write_text(draw_slot_picture(slot), encoding="utf-8")


if __name__ == "__main__":
    main()
