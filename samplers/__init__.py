"""Unmasking samplers for masked-diffusion language models: small, pure, composable policies."""

from samplers.accept_and_renoise import AcceptAndRenoise
from samplers.base import Decision, RevisingSampler, Sampler
from samplers.confidence_threshold import ConfidenceThreshold
from samplers.credit_decoding import CreditDecoding
from samplers.decaying_threshold import DecayingThreshold
from samplers.duo_posterior import DuoPosterior
from samplers.entropy_bound import EntropyBound
from samplers.entropy_threshold import EntropyThreshold
from samplers.eotp import EoTP
from samplers.factor import Factor
from samplers.facts import Fact
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
from samplers.registry import ALL_SAMPLERS, parse
from samplers.remdm import ReMDM
from samplers.remdm_loop import ReMDMLoop
from samplers.sched import SchED
from samplers.state import State
from samplers.t2m import T2M
from samplers.view import View
from samplers.wino import Wino
from samplers.wrapper import Wrapper

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
    "SchED",
    "State",
    "View",
    "Wino",
    "Wrapper",
    "parse",
]
