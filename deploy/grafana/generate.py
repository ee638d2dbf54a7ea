"""Writes the Grafana boards.

python -m deploy.grafana.generate            write dashboards/*.json
python -m deploy.grafana.generate --check    exit 1 if those files are not what would be written
python -m deploy.grafana.generate --rules    print all queries as recording rules, for promtool
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.grafana.boards import BOARDS
from deploy.grafana.boards.as_json import Json, board_json
from deploy.grafana.queries import all_queries

FOLDER = Path(__file__).resolve().parent / "dashboards"


def texts() -> dict[Path, str]:
    """What each file must hold."""
    return {
        FOLDER / f"{name}.json": json.dumps(board_json(board), indent=2) + "\n"
        for name, board in BOARDS.items()
    }


def rules() -> Json:
    """The queries as recording rules, Grafana's variables filled in: promtool parses those."""
    return {
        "groups": [
            {
                "name": board.uid,
                "rules": [
                    {"record": f"board:{name.replace('-', '_')}:{number}", "expr": text}
                    for number, text in enumerate(all_queries(board, "1m").values())
                ],
            }
            for name, board in BOARDS.items()
        ]
    }


def check() -> int:
    """Says which files differ, or should not be there; returns the exit status."""
    wanted = texts()
    wrong = [
        path
        for path in sorted({*wanted, *FOLDER.glob("*.json")})
        if not path.exists() or path.read_text(encoding="utf-8") != wanted.get(path)
    ]
    for path in wrong:
        print(f"{path.name} is not what is generated: run this and commit", file=sys.stderr)
    return 1 if wrong else 0


def main(arguments: Sequence[str]) -> int:
    """Writes the files, checks them or prints the rules; returns the exit status."""
    if "--rules" in arguments:
        print(json.dumps(rules(), indent=2))
        return 0
    if "--check" in arguments:
        return check()
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
