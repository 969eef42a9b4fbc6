"""Sorts objects by keys that are computed from their fields."""


class Parcel:
    def __init__(self, number):
        self.weight = (number * 7919) % 10_007
        self.city = "city" + str(number % 53)
        self.fee = self.weight / 16

    def order(self):
        return (self.city, -self.weight, self.fee)


def sort_often(count, rounds):
    parcels = [Parcel(number) for number in range(count)]
    checked = 0
    for _ in range(rounds):
        parcels = sorted(parcels, key=lambda parcel: parcel.weight)
        checked += parcels[0].weight
        parcels = sorted(parcels, key=lambda parcel: parcel.order())
        checked += parcels[-1].weight
    return checked, parcels[0].city


print(sort_often(4_000, 15))
