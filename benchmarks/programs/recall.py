"""Uses the variable that an earlier turn left behind."""

print(sum(numbers))  # noqa: F821 - the turn before made it
