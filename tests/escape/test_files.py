"""Guests that use files in ways that could reach, cost or confuse the host."""

from __future__ import annotations


def test_folders_that_are_read_within_one_another_and_removed_are_all_seen(box):
    code = """
import os
for n in range(400):
    os.makedirs(f'many/{n}')
    open(f'many/{n}/x', 'w').close()
seen = 0
for entry in os.scandir('many'):
    seen += 1
    for inner in os.scandir(entry.path): os.unlink(inner.path)
    os.rmdir(entry.path)
print(seen, os.listdir('many'))
"""
    assert box.execute(code).stdout == "400 []\n"
