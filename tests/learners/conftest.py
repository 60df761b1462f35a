"""One torch thread: the tensors are tiny, and waiting for a second thread on a busy machine takes longer than the work."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
