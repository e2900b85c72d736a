"""A trainer that is a service: adapters are trained over the Tinker API, and the run is xp's."""
