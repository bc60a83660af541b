"""Forwards that are recorded once and then replayed, so that Python launches one operation a call.

A forward of a few columns is limited by Python, which launches about 20 operations a layer. A graph
is one launch. It reads static buffers, into which each call copies its inputs:

    groups of rows        static buffers                     result
    of any widths  -----> row r is row r of the KV cache --> hidden states of the wanted columns
                          rows and columns are padded        of each group
                          to the sizes of a `GraphKind`

A padded column repeats the last column of its row. A padded row sees nothing, and writes to a slot
that nothing sees. A forward that no graph can serve runs eagerly.

Source: nano-vllm, https://github.com/GeeeekExplorer/nano-vllm, `ModelRunner.capture_cudagraph`.
"""

from dllm_decode.models.graphs.forward_graphs import ForwardGraphs

__all__ = ["ForwardGraphs"]
