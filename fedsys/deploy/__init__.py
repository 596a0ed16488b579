"""Real devices: certificates, enrolment, and Flower's own processes under supervision."""
