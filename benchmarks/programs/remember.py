"""Leaves a variable behind."""

numbers = [number * number for number in range(10_000)]
print(len(numbers))
