"""Warm interpreters, as they are built."""

from __future__ import annotations

from sandbox import images

# Takes and gives back blocks of every size, so that whatever is wrong with the free ones shows.
FILL = "kept = [bytes(size) for size in range(0, 70_000, 24)]\ndel kept[::3]\nprint(len([*kept, *kept]))"


def test_a_new_image_has_a_sound_heap(box):
    box.execute("pass")
    recipe = box.warm_up().recipe
    for _ in range(4):
        box._ready = images._build(recipe, None, box.logger), None
        assert [box.execute(FILL).stdout for _ in range(2)] == ["3888\n"] * 2
