"""For all tests."""

from hypothesis import settings

# A test is judged by what it finds; how long an example takes depends on what else runs.
settings.register_profile("fedsys", deadline=None)
settings.load_profile("fedsys")
