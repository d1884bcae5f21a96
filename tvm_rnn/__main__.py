"""`python -m tvm_rnn` is `tvm-rnn`."""

from tvm_rnn.cli.commands import main

if __name__ == "__main__":
    main()
