"""`python -m tvm_rnn` is `tvm-rnn`."""

from .cli import main

if __name__ == "__main__":
    main()
