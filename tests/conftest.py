"""What holds for every test: schedules are the templates' own, whatever this machine's user has tuned."""

import os

os.environ["TVM_RNN_RECORDS"] = "none"
