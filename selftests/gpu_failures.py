"""How GPUs fail, in the words of those whom it happened to: lines of public reports, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run printed, and what it is.

    :param kind: as in ``fixtures/hardware/failures.py``; ``None`` for a failure that is none of them.
    """

    kind: str | None
    where: str
    text: str
    outcome: str = "crashed"


REPORTS = (
    Report(
        kind="ECC error", where="https://github.com/huggingface/accelerate/issues/1192", text="""\
RuntimeError: CUDA error: uncorrectable ECC error encountered
CUDA kernel errors might be asynchronously reported at some other API call,so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1.
""",
    ),
    Report(
        kind="ECC error", where="https://github.com/leptonai/gpud/pull/1174", text="""\
NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error
""",
    ),
    Report(
        kind="lost device", where="https://github.com/NVIDIA/NVSentinel/issues/155", text="""\
RuntimeError: CUDA error: unspecified launch failure
NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus
""",
    ),
    Report(
        kind="lost device", where="https://github.com/AlexeyAB/darknet/issues/86", text="""\
CUDA Error: no CUDA-capable device is detected
Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot the system to recover this GPU
""",
    ),
    Report(
        kind="lost device", where="https://github.com/NVIDIA/nvidia-resiliency-ext/issues/18", text="""\
    torch._C._cuda_setDevice(device)
RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
""",
    ),
    Report(
        kind="illegal access", where="https://github.com/InternLM/lmdeploy/issues/3258", text="""\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: CUDA error: \
an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 (most recent call first):
""",
    ),
    Report(
        kind="illegal access", where="https://github.com/leptonai/gpud/pull/46", text="""\
NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): \
Illegal Instruction Parameter
""",
    ),
    Report(
        kind="Xid error", where="https://github.com/MIC-DKFZ/nnUNet/issues/1519", text="""\
RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution
""",
    ),
    Report(
        kind="Xid error", where="https://github.com/pytorch/pytorch/issues/74235", text="""\
RuntimeError: CUDA error: unspecified launch failure
NVRM: Xid (PCI:0000:01:00): 109, pid=4124, name=python, Ch 00000028, errorString CTX SWITCH TIMEOUT, Info 0x2c014
""",
    ),
    Report(
        kind="out of memory", where="https://github.com/pytorch/pytorch/issues/16417", outcome="oom", text="""\
torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB \
of which 11.06 MiB is free. Including non-PyTorch memory, this process has 23.60 GiB memory in use.
""",
    ),
    Report(
        kind="out of memory", where="https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/386", text="""\
torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda \
error
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'
""",
    ),
    Report(
        kind="NCCL timeout", where="https://github.com/hiyouga/LlamaFactory/issues/6269", text="""\
[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, NumelIn=544997376, NumelOut=68124672, Timeout(ms)=600000) ran for \
600061 milliseconds before timing out.
[rank0]:[E1206 18:44:12.715588844 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) \
detected by watchdog at work: 7753, last enqueued NCCL work: 7755, last completed NCCL work: 7752.
""",
    ),
    Report(
        kind="NCCL timeout", where="https://github.com/snowflakedb/ArcticTraining/issues/219", outcome="hung", text="""\
[rank7]:[E626 05:14:36.393067540 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 7] ProcessGroupNCCL's \
watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.
""",
    ),
    Report(
        kind=None, where="https://github.com/rwth-i6/returnn/issues/1496", text="""\
ep 2 train, step 587, ctc_4 nan, ctc_8 nan
RuntimeError: CUDA error: unspecified launch failure
""",
    ),
    Report(
        kind=None, where="fixtures: a rank that finds a NaN", text="""\
FloatingPointError: the loss of step 3 is nan
""",
    ),
    Report(
        kind=None, where="fixtures: a rank whose peer went", text="""\
RuntimeError: [Rank 0] NCCL communicator was aborted: remote process exited or there was a network error
torch.distributed.DistNetworkError: Connection closed by peer
""",
    ),
)

INFRASTRUCTURE = {"ECC error", "lost device", "Xid error"}
"""The kinds that are repeated."""
