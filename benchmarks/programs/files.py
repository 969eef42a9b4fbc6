"""Writes files, reads them back and removes them."""

import os

COUNT = 1_000


def write(count):
    for number in range(count):
        with open("file" + str(number) + ".txt", "w") as stream:  # noqa: PTH123 - as most programs have it
            stream.write("line " * 20)


def read(count):
    length = 0
    for number in range(count):
        with open("file" + str(number) + ".txt") as stream:  # noqa: PTH123 - as most programs have it
            length += len(stream.read())
    return length


write(COUNT)
print(read(COUNT))
for number in range(COUNT):
    os.remove("file" + str(number) + ".txt")  # noqa: PTH107 - as most programs have it
