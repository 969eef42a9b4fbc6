"""Writes nested data as JSON and reads it back, again and again."""

import json


def make_records(count):
    return [
        {
            "id": number,
            "name": "record " + str(number),
            "tags": ["even" if number % 2 == 0 else "odd", "t" + str(number % 17)],
            "position": {"x": number / 8, "y": number * 3 / 16},
            "active": number % 3 == 0,
            "parent": None,
        }
        for number in range(count)
    ]


def make_trips(records, trips):
    length = 0
    for _ in range(trips):
        text = json.dumps(records)
        length += len(text)
        records = json.loads(text)
    return length, records[-1]["tags"]


print(make_trips(make_records(400), 60))
