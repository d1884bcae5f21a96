# tvm_rnn for CPUs: docker build -f .github/docker/cpu.Dockerfile -t tvm_rnn .
# docker run --rm -v "$PWD:/data" tvm_rnn compile lstm -o lstm.so --input-size 8 --hidden-size 16 --seed 0
FROM python:3.12-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir "/src[onnx,cross]" && rm -rf /src && useradd --create-home --uid 1000 user
# By its number, which a cluster can see not to be root's.
USER 1000
WORKDIR /data
ENTRYPOINT ["tvm-rnn"]
