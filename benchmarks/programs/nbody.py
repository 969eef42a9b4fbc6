"""Moves a sun and four planets by their gravity, in floats."""


def make_bodies():
    bodies = [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 40.0]]
    for number in range(1, 5):
        far = 4.0 * number
        bodies.append([far, far / 7, far / 50, 0.1 * number, 2.5 / number, 0.01 * number, 0.04 / number])
    return bodies


def pull(one, other, step):
    dx = one[0] - other[0]
    dy = one[1] - other[1]
    dz = one[2] - other[2]
    square = dx * dx + dy * dy + dz * dz
    force = step / (square * square**0.5)
    mine = other[6] * force
    yours = one[6] * force
    one[3] -= dx * mine
    one[4] -= dy * mine
    one[5] -= dz * mine
    other[3] += dx * yours
    other[4] += dy * yours
    other[5] += dz * yours


def advance(bodies, step):
    for first in range(len(bodies)):
        for second in range(first + 1, len(bodies)):
            pull(bodies[first], bodies[second], step)
    for body in bodies:
        body[0] += step * body[3]
        body[1] += step * body[4]
        body[2] += step * body[5]


def simulate(steps):
    bodies = make_bodies()
    for _ in range(steps):
        advance(bodies, 0.001)
    return bodies


print(round(sum(body[0] for body in simulate(12_000)), 6))
