"""Settings of the property tests: no time limit per example, which a busy machine would break."""

from hypothesis import settings

settings.register_profile("fedsys", deadline=None)
settings.load_profile("fedsys")
