"""For all tests."""

import os

# Read when torch is imported, here and in child processes. Whether a product's bits depend on the
# size of a stack differs from CPU to CPU; with these they do not, and tests tell of our code alone.
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# A test is judged by what it finds; how long an example takes depends on what else runs.
settings.register_profile("fedsys", deadline=None)
settings.load_profile("fedsys")
