"""Finds and replaces patterns in a long text."""

import re


def make_text(lines):
    return "\n".join(
        "2026-01-" + str(number % 28 + 1) + " user" + str(number % 97) + "@example.org GET /items/"
        + str(number * 7 % 1000) + "?page=" + str(number % 5) + " 200 " + str(number % 900) + "ms"
        for number in range(lines)
    )  # fmt: skip


def search(text, rounds):
    found = 0
    for _ in range(rounds):
        found += len(re.findall(r"[a-z0-9]+@[a-z]+\.(?:org|com)", text))
        found += len(re.findall(r"/items/(\d+)\?page=(\d)", text))
        found += len(re.sub(r"(\d+)ms", r"<\1>", text))
    return found


print(search(make_text(3_000), 8))
