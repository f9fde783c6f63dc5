from .convolution import ShortConvolution as ShortConvolution
from .norm import FusedRMSNormGated as FusedRMSNormGated
