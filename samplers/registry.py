"""All samplers by name, and samplers from text: `LocalLeap(0.9)`, `my_module:MyRule(0.8)`.

`make lists` writes the imports and `ALL_SAMPLERS`; samplers for uniform-state models come last.
"""

from samplers.accept_and_renoise import AcceptAndRenoise
from samplers.base import Sampler
from samplers.confidence_threshold import ConfidenceThreshold
from samplers.credit_decoding import CreditDecoding
from samplers.decaying_threshold import DecayingThreshold
from samplers.duo_posterior import DuoPosterior
from samplers.entropy_bound import EntropyBound
from samplers.entropy_threshold import EntropyThreshold
from samplers.eotp import EoTP
from samplers.expression import parse_plugin
from samplers.factor import Factor
from samplers.fixed_schedule import FixedSchedule
from samplers.frechet import Frechet
from samplers.hierarchy import Hierarchy
from samplers.joint_threshold import JointThreshold
from samplers.joint_threshold_indel import JointThresholdInDel
from samplers.klass import Klass
from samplers.learn2pd import Learn2PD
from samplers.less import Less
from samplers.local_leap import LocalLeap
from samplers.mask_predict import MaskPredict
from samplers.pc import PC
from samplers.prophet import Prophet
from samplers.quota_threshold import QuotaThreshold
from samplers.rcr import RCR
from samplers.remdm import ReMDM
from samplers.remdm_loop import ReMDMLoop
from samplers.sched import SchED
from samplers.t2m import T2M
from samplers.wino import Wino

ALL_SAMPLERS: tuple[type[Sampler], ...] = (
    ConfidenceThreshold,
    CreditDecoding,
    DecayingThreshold,
    EntropyBound,
    EntropyThreshold,
    EoTP,
    Factor,
    FixedSchedule,
    Frechet,
    Hierarchy,
    JointThreshold,
    JointThresholdInDel,
    Klass,
    Learn2PD,
    Less,
    LocalLeap,
    MaskPredict,
    PC,
    Prophet,
    QuotaThreshold,
    RCR,
    ReMDM,
    ReMDMLoop,
    SchED,
    T2M,
    Wino,
    AcceptAndRenoise,
    DuoPosterior,
)


def parse(text: str) -> Sampler:
    """Builds the sampler that an expression describes.

    For samplers of this package, such as `ConfidenceThreshold(0.9)`, it is the inverse of `repr`.
    `my_package.my_module:MarginThreshold(0.8)` imports that module and builds the user's own.
    A sampler may be an argument of another: `CreditDecoding(LocalLeap(radius=6))`.

    Raises:
        ValueError: If the text does not describe a sampler.
    """
    by_name = {sampler.__name__: sampler for sampler in ALL_SAMPLERS}
    return parse_plugin(text, Sampler, by_name)
