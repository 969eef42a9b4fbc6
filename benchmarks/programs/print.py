"""The smallest program with an answer."""

print(1 + 1)
