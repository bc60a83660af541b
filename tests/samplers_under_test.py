"""The samplers that the laws are tested on: add an instance here and every law covers it."""

import math

from samplers import (
    T2M,
    ConfidenceThreshold,
    CreditDecoding,
    DecayingThreshold,
    EntropyBound,
    EntropyThreshold,
    Factor,
    FixedSchedule,
    Frechet,
    Hierarchy,
    JointThreshold,
    Klass,
    Learn2PD,
    Less,
    LocalLeap,
    Prophet,
    QuotaThreshold,
    Sampler,
    Wino,
)
from samplers.facts import Fact

INSTANCES: tuple[Sampler, ...] = (
    ConfidenceThreshold(),
    ConfidenceThreshold(0.3),
    ConfidenceThreshold(0.6),
    DecayingThreshold(0.8, 0.9, 0),
    EntropyBound(),
    EntropyBound(0.6, "confidence"),
    EntropyBound(math.inf, "margin"),
    EntropyThreshold(),
    Factor(),
    Factor(0.75, "inclusive"),
    Factor(1.0, "official"),
    FixedSchedule(3),
    FixedSchedule(2, "random"),
    FixedSchedule(4, "margin"),
    FixedSchedule(5, "entropy", "dream"),
    Frechet(),
    Frechet(-math.inf),
    Hierarchy(),
    Hierarchy(0.2, 1.0),
    JointThreshold(),
    JointThreshold(0.7, 0.5, 3, 2, 1.5),
    Klass(0.4, 0.05),
    Klass(0.9, 0.01, 1, 2),
    Klass(0.42, 0.5, 1, 13),
    Less(),
    Less(0.3, 0.1, 1, 2),
    LocalLeap(),
    LocalLeap(0.8, 0.3, 1),
    CreditDecoding(LocalLeap()),
    Prophet(FixedSchedule(3)),
    QuotaThreshold(0.4, 3),
    QuotaThreshold(0.4, 5, "most"),
    T2M(),
    T2M(0.3, "low_prob", 0.9, 2, 1.0, 3, eos_early_stop=False),
    T2M(0.5, "t2t_remask", 0.3, 3),
    T2M(0.3, "logit_diff", 0.1, 3, 0.5, 4),
    CreditDecoding(Klass(0.42, 0.5, 1, 13)),
    Prophet(CreditDecoding(Klass(0.4, 0.05))),
    Wino(0.3),
)

VERIFIABLE: tuple[Sampler, ...] = tuple(
    one for one in INSTANCES if Fact.ONE_STEP_A_FORWARD not in one.needs
)
"""Those that `SelfVerify` takes: it refuses samplers that edit what they have committed."""

# For laws that decode many times with each: one that plans ahead, one that follows confidence.
FEW: tuple[Sampler, ...] = (ConfidenceThreshold(0.6), FixedSchedule(3))

# Their filters read blocks of one length, by that length; their own tests hold these laws.
OF_ONE_BLOCK_LENGTH: dict[Sampler, int] = {Learn2PD(): 32}
