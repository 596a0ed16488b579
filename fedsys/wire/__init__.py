"""The wire: payloads as bytes, and what a receiver may believe of them."""
