"""A picture of mean rewards by step."""

WIDTH, HEIGHT, MARGIN = 480, 240, 36


def svg(rewards):
    """An SVG document with one point for each step that has a reward."""
    last = max(len(rewards) - 1, 1)
    across, down = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    points = [
        (MARGIN + across * step / last, HEIGHT - MARGIN - down * reward)
        for step, reward in enumerate(rewards)
        if reward is not None
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for reward in (0.0, 0.5, 1.0):
        y = HEIGHT - MARGIN - down * reward
        rows.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y}" y2="{y}" stroke="#ddd"/>'
            f'<text x="{MARGIN - 6}" y="{y + 4}" text-anchor="end">{reward}</text>'
        )
    rows.append(f'<polyline points="{line}" fill="none" stroke="#2060c0" stroke-width="2"/>')
    middle = WIDTH / 2
    rows.append(f'<text x="{middle}" y="20" text-anchor="middle">mean reward of a step</text>')
    for step in (0, len(rewards) - 1):
        x = MARGIN + across * step / last
        rows.append(f'<text x="{x}" y="{HEIGHT - 14}" text-anchor="middle">{step}</text>')
    rows.append("</svg>")
    return "\n".join(rows) + "\n"
