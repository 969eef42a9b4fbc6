"""Counts words and inverts an index, which is mostly dictionary work."""


def make_words(count):
    return ["w" + str(number * 31 % 4_999) for number in range(count)]


def count_words(words):
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts


def invert(counts):
    index = {}
    for word, count in counts.items():
        if count not in index:
            index[count] = []
        index[count].append(word)
    return index


def work(count, rounds):
    words = make_words(count)
    total = 0
    for _ in range(rounds):
        index = invert(count_words(words))
        total += sum(key * len(index[key]) for key in index)
    return total


print(work(60_000, 6))
