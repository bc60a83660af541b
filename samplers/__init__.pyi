from .accept_and_renoise import AcceptAndRenoise
from .base import Decision, RevisingSampler, Sampler
from .confidence_threshold import ConfidenceThreshold
from .credit_decoding import CreditDecoding
from .decaying_threshold import DecayingThreshold
from .duo_posterior import DuoPosterior
from .entropy_bound import EntropyBound
from .entropy_threshold import EntropyThreshold
from .eotp import EoTP
from .factor import Factor
from .facts import Fact
from .fixed_schedule import FixedSchedule
from .frechet import Frechet
from .hierarchy import Hierarchy
from .joint_threshold import JointThreshold
from .joint_threshold_indel import JointThresholdInDel
from .klass import Klass
from .learn2pd import Learn2PD
from .less import Less
from .local_leap import LocalLeap
from .mask_predict import MaskPredict
from .pc import PC
from .prophet import Prophet
from .quota_threshold import QuotaThreshold
from .rcr import RCR
from .registry import ALL_SAMPLERS, parse
from .remdm import ReMDM
from .remdm_loop import ReMDMLoop
from .sched import SchED
from .state import SamplerState
from .t2m import T2M
from .view import View
from .wino import Wino
from .wrapper import Wrapper

__all__ = [
    "ALL_SAMPLERS",
    "PC",
    "RCR",
    "T2M",
    "AcceptAndRenoise",
    "ConfidenceThreshold",
    "CreditDecoding",
    "DecayingThreshold",
    "Decision",
    "DuoPosterior",
    "EntropyBound",
    "EntropyThreshold",
    "EoTP",
    "Fact",
    "Factor",
    "FixedSchedule",
    "Frechet",
    "Hierarchy",
    "JointThreshold",
    "JointThresholdInDel",
    "Klass",
    "Learn2PD",
    "Less",
    "LocalLeap",
    "MaskPredict",
    "Prophet",
    "QuotaThreshold",
    "ReMDM",
    "ReMDMLoop",
    "RevisingSampler",
    "Sampler",
    "SamplerState",
    "SchED",
    "View",
    "Wino",
    "Wrapper",
    "parse",
]
