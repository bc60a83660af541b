# A server, see docs/serve.md:
#
#     docker build --tag dllm-decode .
#     docker run --rm --publish 127.0.0.1:8000:8000 dllm-decode
FROM python:3.11-slim

# Torch without CUDA, which is a tenth of the size. Torch with CUDA:
#     docker build --build-arg TORCH_INDEX=https://pypi.org/simple --tag dllm-decode:cuda .
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# A volume has the owner of the folder that it covers.
RUN useradd --uid 1000 --create-home server \
    && install --directory --owner=server --group=server /home/server/.cache
WORKDIR /opt/dllm-decode

# Apart from the sources, so that a change of these does not install torch anew.
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt --extra-index-url "$TORCH_INDEX" torch

COPY LICENSE NOTICE README.md pyproject.toml ./
COPY eval ./eval
COPY samplers ./samplers
COPY dllm_decode ./dllm_decode
RUN pip install --no-cache-dir --constraint constraints.txt --extra-index-url "$TORCH_INDEX" \
    ".[serve]"

USER 1000
# The hub's models are kept in ~/.cache, see docs/serve.md. Threads that wait actively are slow.
ENV OMP_WAIT_POLICY=PASSIVE
EXPOSE 8000
HEALTHCHECK --start-period=10m CMD ["python", "-c", \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=10)"]
ENTRYPOINT ["dllm-decode", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["--model", "mini"]
