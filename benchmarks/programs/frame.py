"""Makes a small data frame and adds it up."""

import numpy as np
import pandas as pd

frame = pd.DataFrame({"a": np.arange(4), "b": [3, 4, 5, 6]})
print(frame.sum().sum())
