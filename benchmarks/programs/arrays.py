"""Multiplies, sorts and transforms arrays of a few megabytes."""

import numpy as np

left = np.arange(400 * 400, dtype=float).reshape(400, 400) % 17
right = left.T.copy()
product = left @ right
values = (np.arange(1_000_000, dtype=np.int64) * 7919 % 1_000_003).astype(float)
ordered = np.sort(values)
print(int(product.sum()), int(ordered[::1000].sum()), round(float(np.sqrt(values).mean()), 6))
